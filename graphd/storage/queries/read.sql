-- OFFSET 0, here and in the other files: each key is looked up by itself. As a plain join, a planner that believes the table empty (it was
-- when it was last analyzed) reads all of it.

-- name: edges
-- Forward halves by key, one row per item: whether this shard owns the slot, and the version if there is one.
SELECT k.item, mine.slot IS NOT NULL, e.position, e.state, e.since
FROM unnest(
    %(item)s::integer[], %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[], %(neighbor_id)s::bigint[]
) AS k (item, owner_id, kind, slot, neighbor_id)
LEFT JOIN slots AS mine ON mine.slot = k.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT h.position, h.state, h.since
    FROM {table} AS h
    WHERE h.owner_id = k.owner_id AND h.kind = k.kind AND h.slot = k.slot AND h.neighbor_id = k.neighbor_id AND h.position > 0
    OFFSET 0
) AS e ON true;

-- name: degrees
-- Degrees of owners in one kind each, by direction and state: several rows per item, or one without a degree.
SELECT k.item, mine.slot IS NOT NULL, d.direction, d.state, d.degree
FROM unnest(%(item)s::integer[], %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[])
    AS k (item, owner_id, kind, slot)
LEFT JOIN slots AS mine ON mine.slot = k.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT c.direction, c.state, c.degree
    FROM degrees AS c
    WHERE c.owner_id = k.owner_id AND c.direction IN (1, 2) AND c.kind = k.kind AND c.slot = k.slot
    OFFSET 0
) AS d ON mine.slot IS NOT NULL;

-- name: newest_first
-- Pages of lists, newest first: rows strictly after (since, neighbor_id). One row per item: its neighbors, then their sinces, then
-- their positions, in one array, which is three times as cheap to read as three.
SELECT q.item, mine.slot IS NOT NULL, p.columns
FROM unnest(
    %(item)s::integer[], %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[], %(state)s::smallint[],
    %(since)s::bigint[], %(neighbor_id)s::bigint[], %(row_count)s::integer[]
) AS q (item, owner_id, kind, slot, state, since, neighbor_id, row_count)
LEFT JOIN slots AS mine ON mine.slot = q.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT array_agg(l.neighbor_id) || array_agg(l.since) || array_agg(l.position) AS columns
    FROM (
        SELECT e.neighbor_id, e.since, e.position
        FROM {table} AS e
        WHERE e.owner_id = q.owner_id AND e.kind = q.kind AND e.state = q.state AND e.slot = q.slot
            AND (e.since, e.neighbor_id) < (q.since, q.neighbor_id) AND e.position > 0
        ORDER BY e.since DESC, e.neighbor_id DESC
        LIMIT q.row_count
    ) AS l
) AS p ON mine.slot IS NOT NULL;

-- name: oldest_first
-- The same, oldest first.
SELECT q.item, mine.slot IS NOT NULL, p.columns
FROM unnest(
    %(item)s::integer[], %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[], %(state)s::smallint[],
    %(since)s::bigint[], %(neighbor_id)s::bigint[], %(row_count)s::integer[]
) AS q (item, owner_id, kind, slot, state, since, neighbor_id, row_count)
LEFT JOIN slots AS mine ON mine.slot = q.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT array_agg(l.neighbor_id) || array_agg(l.since) || array_agg(l.position) AS columns
    FROM (
        SELECT e.neighbor_id, e.since, e.position
        FROM {table} AS e
        WHERE e.owner_id = q.owner_id AND e.kind = q.kind AND e.state = q.state AND e.slot = q.slot
            AND (e.since, e.neighbor_id) > (q.since, q.neighbor_id) AND e.position > 0
        ORDER BY e.since, e.neighbor_id
        LIMIT q.row_count
    ) AS l
) AS p ON mine.slot IS NOT NULL;

-- name: stretch
-- Neighbors and sinces of an ACTIVE list, newest first, strictly after (since, neighbor_id), and whether the slot is owned here: one row.
-- Nothing is asked that the index of the lists does not hold: a row at position 0 is REMOVED, so no list in this state has one.
SELECT
    array_agg(l.neighbor_id), array_agg(l.since),
    EXISTS (SELECT FROM slots AS mine WHERE mine.slot = %(slot)s::smallint AND mine.owned)
FROM (
    SELECT e.neighbor_id, e.since
    FROM {table} AS e
    WHERE e.owner_id = %(owner_id)s::bigint AND e.kind = %(kind)s::smallint AND e.state = 1 AND e.slot = %(slot)s::smallint
        AND (e.since, e.neighbor_id) < (%(since)s::bigint, %(neighbor_id)s::bigint)
    ORDER BY e.since DESC, e.neighbor_id DESC
    LIMIT %(row_count)s::integer
) AS l;

-- name: window
-- Ids of one list in descending order, `top` at most and `bottom` at least, `row_count` of them at most; and whether the slot is
-- owned here: one row.
SELECT array_agg(l.neighbor_id), EXISTS (SELECT FROM slots AS mine WHERE mine.slot = %(slot)s::smallint AND mine.owned)
FROM (
    SELECT e.neighbor_id
    FROM {table} AS e
    WHERE e.owner_id = %(owner_id)s::bigint AND e.kind = %(kind)s::smallint AND e.slot = %(slot)s::smallint
        AND e.state = %(state)s::smallint AND e.neighbor_id <= %(top)s::bigint AND e.neighbor_id >= %(bottom)s::bigint
        AND e.position > 0
    ORDER BY e.neighbor_id DESC
    LIMIT %(row_count)s::integer
) AS l;

-- name: probe
-- Which of the ids asked for are in a list, and whether the slot is owned here: one row. Each is asked for as a range in the order of ids,
-- with the state looked at outside: a planner that believes the list empty would look each up in the index that begins with the state, where
-- it costs the whole list.
SELECT array_agg(e.neighbor_id), EXISTS (SELECT FROM slots AS mine WHERE mine.slot = %(slot)s::smallint AND mine.owned)
FROM unnest(%(ids)s::bigint[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT h.neighbor_id, h.state
    FROM {table} AS h
    WHERE h.owner_id = %(owner_id)s::bigint AND h.kind = %(kind)s::smallint AND h.slot = %(slot)s::smallint
        AND h.neighbor_id <= k.id AND h.neighbor_id >= k.id AND h.position > 0
    ORDER BY h.neighbor_id DESC
    LIMIT 1
) AS e
WHERE e.state = %(state)s::smallint;

-- name: sizes
-- Halves per slot, by the degrees, and whether the slot is owned here. Degrees are exact, and far fewer than the rows they count.
SELECT
    s.slot, s.owned, coalesce(sum(d.degree) FILTER (WHERE d.direction = 1), 0)::bigint,
    coalesce(sum(d.degree) FILTER (WHERE d.direction = 2), 0)::bigint
FROM slots AS s
LEFT JOIN degrees AS d ON d.slot = s.slot
WHERE s.slot = ANY (%(slots)s::smallint[])
GROUP BY s.slot, s.owned
ORDER BY s.slot;

-- name: summary
-- What a shard holds, cheaply: estimated halves, bytes on disk, and how much is owed to others since when. Two estimates of the halves,
-- neither of which is ever much too high: reltuples is 0 until the first analyze, and n_live_tup begins at 0 again after a crash.
SELECT
    (
        SELECT coalesce(sum(greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0)), 0)::bigint
        FROM pg_class AS c
        WHERE c.oid IN ('forward'::regclass, 'reverse'::regclass)
    ),
    (
        SELECT sum(pg_total_relation_size(c.oid))::bigint
        FROM pg_class AS c
        WHERE c.oid IN ('forward'::regclass, 'reverse'::regclass, 'degrees'::regclass, 'outbox'::regclass, 'receipts'::regclass)
    ),
    (SELECT count(*) FROM outbox AS o WHERE NOT o.parked),
    (SELECT coalesce(extract(epoch FROM now() - min(uuid_extract_timestamp(o.id))), 0)::float8 FROM outbox AS o WHERE NOT o.parked);

-- name: remember
-- The receipt of a write that was refused or stale, and so wrote nothing. It answers a row if it was kept; none when a twin was there first, or
-- when the slot is not owned here (any more). Like every write it stands behind the slot's lock, in the statement after it.
INSERT INTO receipts (actor_id, namespace, id, slot, fingerprint, outcome, position, state, since, reason)
SELECT
    %(actor_id)s::bigint, %(namespace)s::smallint, %(id)s::text, s.slot, %(fingerprint)s::bigint, %(outcome)s::smallint,
    %(position)s::bigint, %(state)s::smallint, %(since)s::bigint, %(reason)s::text
FROM slots AS s
WHERE s.slot = %(slot)s::smallint AND s.owned
ON CONFLICT (actor_id, namespace, id, slot) DO NOTHING
RETURNING 1;

-- name: counters
-- Outbox rows of edges that owe something to the edge the other way by what callers did (operations up to 7, so no ARCHIVE or RESTORE):
-- (item, owned here, peer slot, id, operation), one row or several per item, or one without a debt.
SELECT k.item, mine.slot IS NOT NULL, o.peer_slot, o.id, o.operation
FROM unnest(
    %(item)s::integer[], %(source_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[], %(destination_id)s::bigint[]
) AS k (item, source_id, kind, slot, destination_id)
LEFT JOIN slots AS mine ON mine.slot = k.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT p.peer_slot, p.id, p.operation
    FROM outbox AS p
    WHERE p.source_id = k.source_id AND p.destination_id = k.destination_id AND p.operation <> 0 AND p.operation < 8 AND p.kind = k.kind AND NOT p.parked
    OFFSET 0
) AS o ON mine.slot IS NOT NULL;

-- name: suspensions
-- Whether accounts are suspended in one kind each: (item, owned here, suspended), one row per item.
SELECT k.item, mine.slot IS NOT NULL, s.standing IS NOT NULL
FROM unnest(%(item)s::integer[], %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[])
    AS k (item, owner_id, kind, slot)
LEFT JOIN slots AS mine ON mine.slot = k.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT p.standing
    FROM archived_accounts AS p
    WHERE p.account_id = k.owner_id AND p.kind = k.kind AND p.slot = k.slot AND p.standing > 0
    OFFSET 0
) AS s ON true;
