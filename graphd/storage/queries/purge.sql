-- Rows that are absent to every read, but removed at some time: tombstones (state 6), those at position 0 too, which an operation leaves that
-- was refused from absent. Such a row's age is in `since`.

-- name: mark
-- Notes that rows older than the horizon are brought in this transaction, unless that was noted a moment ago. Whoever brings them does this
-- after the slots' locks and before any row. It answers a row if it noted it.
UPDATE backfilled
SET at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
WHERE at < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - %(refresh_us)s::bigint
RETURNING at;

-- name: wait_for_purges
-- An import writes both halves on its own, so it must not begin while one half of an edge is purged and the other is not. It waits for
-- purges under way on this shard, then marks. -1 is no slot.
SELECT pg_advisory_xact_lock(-1);

-- name: begin_purge
-- The other side of it: taken where the forward half lives, and held from the look at the mark until the forward half is gone.
SELECT pg_advisory_xact_lock_shared(-1);

-- name: backfilled
-- Whether the last backfill of this shard is so long ago that tombstones may go.
SELECT b.at <= least(%(now_us)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - %(keep_us)s::bigint
FROM backfilled AS b;

-- name: place
-- Where a daemon left off: direction and owner.
SELECT direction, owner_id FROM purge_place;

-- name: keep_place
UPDATE purge_place SET direction = %(direction)s::smallint, owner_id = %(owner_id)s::bigint;

-- name: walk
-- The next rows of a table in the order of the lists' index, which alone is read until a tombstone is met that is old enough: those of
-- slots owned here are answered, and the last row looked at whatever it is. Old tombstones keep their place in that order.
WITH walked AS MATERIALIZED (
    SELECT i.*, row_number() OVER () AS number
    FROM (
        SELECT e.owner_id, e.kind, e.state, e.slot, e.since, e.neighbor_id
        FROM {table} AS e
        WHERE (e.owner_id, e.kind, e.state, e.slot, e.since, e.neighbor_id) > (
            %(owner_id)s::bigint, %(kind)s::smallint, %(state)s::smallint, %(slot)s::smallint, %(since)s::bigint, %(neighbor_id)s::bigint
        )
        ORDER BY e.owner_id, e.kind, e.state, e.slot, e.since, e.neighbor_id
        LIMIT %(row_count)s::integer
    ) AS i
),

aged AS MATERIALIZED (
    SELECT least(%(now_us)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - %(keep_us)s::bigint AS upto
)

SELECT w.number, w.owner_id, w.kind, w.state, w.slot, w.since, w.neighbor_id, h.position
FROM walked AS w
LEFT JOIN LATERAL (
    SELECT p.position
    FROM {table} AS p
    WHERE w.state = 6 AND w.since <= (SELECT a.upto FROM aged AS a) AND (SELECT s.owned FROM slots AS s WHERE s.slot = w.slot)
        AND p.owner_id = w.owner_id AND p.kind = w.kind AND p.slot = w.slot AND p.neighbor_id = w.neighbor_id
        AND p.state = 6 AND p.since = w.since AND p.position <= (SELECT a.upto FROM aged AS a)
    OFFSET 0
) AS h ON true
WHERE h.position IS NOT NULL OR w.number = (SELECT max(l.number) FROM walked AS l);

-- name: standing
-- Which of these tombstones the forward half agrees to: its slot is owned here, it is that very version or absent, nothing has been owed to
-- the other slot for long (be it this edge's or another's: to ask that is one step in the outbox's key), and no backfill was here lately.
SELECT k.owner_id, k.kind, k.neighbor_id
FROM unnest(
    %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[], %(neighbor_id)s::bigint[], %(peer_slot)s::smallint[],
    %(position)s::bigint[], %(since)s::bigint[]
) AS k (owner_id, kind, slot, neighbor_id, peer_slot, position, since)
JOIN slots AS mine ON mine.slot = k.slot AND mine.owned
LEFT JOIN LATERAL (
    SELECT p.position, p.state, p.since
    FROM forward AS p
    WHERE p.owner_id = k.owner_id AND p.kind = k.kind AND p.slot = k.slot AND p.neighbor_id = k.neighbor_id
    OFFSET 0
) AS e ON true
WHERE (coalesce(e.position, 0) = 0 OR (e.position, e.state, e.since) = (k.position, 6, k.since))
    AND NOT EXISTS (
        SELECT FROM outbox AS o
        WHERE o.peer_slot = k.peer_slot AND NOT o.parked AND o.id < (SELECT uuidv7(-%(debt_s)s::float8 * interval '1 second'))
        OFFSET 0
    )
    AND (
        SELECT b.at <= least(%(now_us)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - %(keep_us)s::bigint
        FROM backfilled AS b
    );

-- name: delete
-- Deletes tombstones of slots owned here that are still that very version. What somebody else is writing now is left to him, so this waits
-- for no row. It answers what it deleted, and with false what was not there; never when a backfill was here lately.
WITH asked AS MATERIALIZED (
    SELECT k.*, e.position IS NULL AS absent
    FROM unnest(
        %(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[], %(neighbor_id)s::bigint[],
        %(position)s::bigint[], %(since)s::bigint[]
    ) AS k (owner_id, kind, slot, neighbor_id, position, since)
    JOIN slots AS mine ON mine.slot = k.slot AND mine.owned
    LEFT JOIN LATERAL (
        SELECT p.position, p.state, p.since
        FROM {table} AS p
        WHERE p.owner_id = k.owner_id AND p.kind = k.kind AND p.slot = k.slot AND p.neighbor_id = k.neighbor_id
        OFFSET 0
    ) AS e ON true
    WHERE (e.position IS NULL OR (e.position, e.state, e.since) = (k.position, 6, k.since))
        AND (
            SELECT b.at <= least(%(now_us)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - %(keep_us)s::bigint
            FROM backfilled AS b
        )
),

gone AS (
    DELETE FROM {table}
    WHERE ctid = ANY (ARRAY(
        SELECT h.place
        FROM asked AS a
        CROSS JOIN LATERAL (
            SELECT p.ctid AS place
            FROM {table} AS p
            WHERE p.owner_id = a.owner_id AND p.kind = a.kind AND p.slot = a.slot AND p.neighbor_id = a.neighbor_id
                AND p.position = a.position AND p.state = 6 AND p.since = a.since
            FOR UPDATE SKIP LOCKED
        ) AS h
        WHERE NOT a.absent
    ))
    RETURNING owner_id, kind, neighbor_id
)

SELECT owner_id, kind, neighbor_id, true FROM gone
UNION ALL
SELECT owner_id, kind, neighbor_id, false FROM asked WHERE absent;

-- name: discount
-- Takes halves that were deleted out of the degrees of REMOVED, in key order and after the rows, as every writer does.
INSERT INTO degrees AS e (owner_id, direction, kind, state, slot, degree)
SELECT owner_id, %(direction)s::smallint, kind, 6, slot, -count(*)
FROM unnest(%(owner_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[]) AS t (owner_id, kind, slot)
GROUP BY owner_id, kind, slot
ORDER BY owner_id, kind, slot
ON CONFLICT (owner_id, direction, kind, state, slot) DO UPDATE SET degree = e.degree + excluded.degree;
