-- name: lock_slots
-- Takes the shared lock of every slot a batch touches, in ascending order, until the transaction ends. It must stand in a statement
-- of its own before the writes: under READ COMMITTED their snapshot is then younger than the locks, so ownership cannot flip
-- between the reading of `slots` and the commit.
SELECT count(pg_advisory_xact_lock_shared(slot::bigint)) FROM unnest(%(slots)s::smallint[]) AS t (slot);

-- name: lock_owners
-- Takes the lock of every (owner, kind) whose edges are limited and are about to change, in one order, after the slots' locks: the count
-- that the next statement reads then stays what it is until the transaction ends. Two owners of one hash only wait for each other.
SELECT count(pg_advisory_xact_lock(k.kind, k.hash))
FROM (
    SELECT DISTINCT t.kind::integer AS kind, hashint8(t.owner_id) AS hash
    FROM unnest(%(owner_id)s::bigint[], %(kind)s::smallint[]) AS t (owner_id, kind)
    ORDER BY 1, 2
) AS k;

-- name: write
-- The whole write path of one shard: decides operations on forward halves, merges reverse halves, keeps the degrees, notes what is
-- owed to other shards, remembers receipts, and strikes what has been delivered. Each key occurs once per direction. Rows are
-- written in key order, table after table, and every other writer keeps this order: forward, reverse, degrees, receipts.
WITH clock AS MATERIALIZED (
    SELECT
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(ahead)s::bigint AS held,
        mod(extract(epoch FROM now())::bigint / %(bucket_s)s::bigint, %(buckets)s::bigint)::smallint AS bucket,
        EXISTS (SELECT FROM archived_accounts) AS any_suspended,
        -- What the ids of this statement's outbox rows begin with; the item is the rest. To draw each costs as much as an index entry.
        left(uuidv7()::text, 32) AS id_begin
),

asked AS MATERIALIZED (
    -- A live stamp is held to this server's clock, so that a router ahead of the time cannot push edges into the future; a given
    -- position beyond it is not written at all.
    SELECT
        a.item, a.source_id, a.kind, a.slot, a.destination_id, a.peer_slot, a.operation, a.suspended,
        CASE WHEN a.operation > %(given)s::smallint THEN a.stamp ELSE least(a.stamp, (SELECT held FROM clock)) END AS stamp,
        CASE
            WHEN a.operation > %(given)s::smallint THEN (%(given_states)s::smallint[])[a.operation - %(given)s::smallint]
            ELSE (%(transitions)s::smallint[])[a.operation][1]
        END AS first_state,
        a.operation > %(given)s::smallint AND a.stamp > (SELECT held FROM clock) AS ahead,
        mine.slot IS NOT NULL AS owned,
        peer.slot IS NOT NULL AS peer_owned,
        r.fingerprint, r.outcome, r.position AS r_position, r.state AS r_state, r.since AS r_since, r.reason AS r_reason
    FROM (
        -- An operation of a suspended source is another one. Hardly any account is: where none is, none is looked for.
        SELECT
            u.item, u.source_id, u.kind, u.slot, u.destination_id, u.peer_slot, u.stamp, s.standing IS NOT NULL AS suspended,
            CASE WHEN s.standing IS NULL THEN u.operation ELSE u.operation + %(suspended)s::smallint END AS operation
        FROM unnest(
            %(item)s::integer[], %(source_id)s::bigint[], %(kind)s::smallint[], %(slot)s::smallint[],
            %(destination_id)s::bigint[], %(peer_slot)s::smallint[], %(operation)s::smallint[], %(stamp)s::bigint[]
        ) AS u (item, source_id, kind, slot, destination_id, peer_slot, operation, stamp)
        LEFT JOIN LATERAL (
            SELECT p.standing
            FROM archived_accounts AS p
            WHERE p.account_id = u.source_id AND p.kind = u.kind AND p.slot = u.slot AND p.standing > 0
                AND (SELECT any_suspended FROM clock)
            OFFSET 0
        ) AS s ON true
    ) AS a
    LEFT JOIN slots AS mine ON mine.slot = a.slot AND mine.owned
    LEFT JOIN slots AS peer ON peer.slot = a.peer_slot AND peer.owned
    LEFT JOIN (
        unnest(
            %(r_item)s::integer[], %(r_actor)s::bigint[], %(r_namespace)s::smallint[], %(r_id)s::text[], %(r_slot)s::smallint[]
        ) AS k (item, actor_id, namespace, id, slot)
        CROSS JOIN LATERAL (
            SELECT p.* FROM receipts AS p
            WHERE p.actor_id = k.actor_id AND p.namespace = k.namespace AND p.id = k.id AND p.slot = k.slot
            OFFSET 0
        ) AS r
    ) ON k.item = a.item
),

crowded AS MATERIALIZED (
    -- Live operations that would make one edge too many ACTIVE, of the kinds that have a limit: those that would become ACTIVE are ranked
    -- against what is left, what this statement frees included. Nobody else changes these counts: see lock_owners.
    SELECT r.item
    FROM (
        SELECT
            c.item, c.activates, c.most - c.degree AS room,
            count(*) FILTER (WHERE c.activates) OVER (PARTITION BY c.source_id, c.kind ORDER BY c.item) AS rank,
            count(*) FILTER (WHERE c.frees) OVER (PARTITION BY c.source_id, c.kind) AS freed
        FROM (
            SELECT
                l.item, l.most, a.source_id, a.kind, coalesce(d.degree, 0) AS degree,
                s.after = 1 AND coalesce(e.state, 0) <> 1 AS activates,
                s.after NOT IN (0, 1) AND coalesce(e.state, 0) = 1 AS frees
            FROM unnest(%(l_item)s::integer[], %(l_most)s::bigint[]) AS l (item, most)
            JOIN asked AS a ON a.item = l.item AND a.owned AND a.fingerprint IS NULL
            LEFT JOIN LATERAL (
                SELECT CASE p.position WHEN 0 THEN 0 ELSE p.state END AS state
                FROM forward AS p
                WHERE p.owner_id = a.source_id AND p.kind = a.kind AND p.slot = a.slot AND p.neighbor_id = a.destination_id
                OFFSET 0
            ) AS e ON true
            LEFT JOIN LATERAL (
                SELECT p.degree
                FROM degrees AS p
                WHERE p.owner_id = a.source_id AND p.direction = 1 AND p.kind = a.kind AND p.state = 1 AND p.slot = a.slot
                OFFSET 0
            ) AS d ON true
            CROSS JOIN LATERAL (
                SELECT (%(transitions)s::smallint[])[a.operation][1 + coalesce(e.state, 0)] AS after OFFSET 0
            ) AS s
        ) AS c
    ) AS r
    WHERE r.activates AND r.rank > r.room + r.freed
),

decided AS (
    -- Where no row was, an operation that is refused from absent leaves a tombstone at position 0, which is absent to every read. The
    -- stamp travels in `since`.
    INSERT INTO forward AS e (owner_id, neighbor_id, position, since, slot, kind, state, operation)
    SELECT
        source_id, destination_id, CASE WHEN first_state > 0 THEN stamp ELSE 0 END, stamp, slot, kind,
        CASE WHEN first_state > 0 THEN first_state ELSE 6 END, operation
    FROM asked
    WHERE owned AND NOT ahead AND fingerprint IS NULL AND NOT EXISTS (SELECT FROM crowded AS c WHERE c.item = asked.item)
    ORDER BY source_id, kind, slot, destination_id
    ON CONFLICT (owner_id, kind, slot, neighbor_id) DO UPDATE SET
        position = CASE
            WHEN excluded.operation > %(given)s::smallint THEN excluded.position
            ELSE greatest(excluded.since, e.position + 1)
        END,
        since = CASE
            WHEN excluded.operation > %(given)s::smallint THEN excluded.since
            WHEN e.position > 0 AND (
                mod(excluded.operation, %(suspended)s::smallint) >= %(keeps_since)s::smallint
                OR (%(transitions)s::smallint[])[excluded.operation][1 + e.state] = e.state
            ) THEN e.since
            ELSE greatest(excluded.since, e.position + 1)
        END,
        state = CASE
            WHEN excluded.operation > %(given)s::smallint THEN excluded.state
            ELSE (%(transitions)s::smallint[])[excluded.operation][1 + CASE e.position WHEN 0 THEN 0 ELSE e.state END]
        END,
        operation = excluded.operation
    WHERE CASE
        WHEN excluded.operation > %(given)s::smallint THEN (excluded.position, excluded.state) > (e.position, e.state)
        ELSE (%(transitions)s::smallint[])[excluded.operation][1 + CASE e.position WHEN 0 THEN 0 ELSE e.state END] > 0
    END
    RETURNING
        new.owner_id, new.kind, new.slot, new.neighbor_id, new.position, new.state, new.since, new.operation,
        coalesce(old.position, 0) AS old_position, old.state AS old_state, old.since AS old_since
),

told AS MATERIALIZED (
    -- Each decided operation again with its item, the name of the outbox row where its destination lives elsewhere, and of a second one
    -- where the operation also owes something to the edge the other way.
    SELECT
        a.item, a.peer_slot, a.peer_owned, d.*,
        CASE WHEN NOT a.peer_owned THEN ((SELECT id_begin FROM clock) || lpad(to_hex(a.item), 4, '0'))::uuid END AS outbox_id,
        CASE
            WHEN (d.old_position = 0 OR d.old_state <> d.state) AND (%(counters)s::smallint[])[d.operation] > 0 THEN uuidv7()
        END AS counter_id
    FROM decided AS d
    JOIN asked AS a ON a.source_id = d.owner_id AND a.kind = d.kind AND a.destination_id = d.neighbor_id
    WHERE d.position > 0
),

arrived AS MATERIALIZED (
    -- Reverse versions brought by others, with this statement's reading of who owns their slot.
    SELECT v.*, mine.slot IS NOT NULL AS owned
    FROM unnest(
        %(v_item)s::integer[], %(v_owner_id)s::bigint[], %(v_kind)s::smallint[], %(v_slot)s::smallint[],
        %(v_neighbor_id)s::bigint[], %(v_position)s::bigint[], %(v_state)s::smallint[], %(v_since)s::bigint[]
    ) AS v (item, owner_id, kind, slot, neighbor_id, position, state, since)
    LEFT JOIN slots AS mine ON mine.slot = v.slot AND mine.owned
),

merged AS (
    -- Reverse halves: those just decided whose destination lives here, and those that arrived, folded by merge.
    INSERT INTO reverse AS e (owner_id, neighbor_id, position, since, slot, kind, state, operation)
    SELECT DISTINCT ON (owner_id, kind, slot, neighbor_id)
        owner_id, neighbor_id, position, since, slot, kind, state, 0
    FROM (
        SELECT neighbor_id AS owner_id, kind, peer_slot AS slot, owner_id AS neighbor_id, position, state, since
        FROM told WHERE peer_owned
        UNION ALL
        SELECT owner_id, kind, slot, neighbor_id, position, state, since FROM arrived WHERE owned
    ) AS v
    ORDER BY owner_id, kind, slot, neighbor_id, position DESC, state DESC, since DESC
    ON CONFLICT (owner_id, kind, slot, neighbor_id) DO UPDATE SET
        position = excluded.position, state = excluded.state, since = excluded.since, operation = excluded.operation
    WHERE (excluded.position, excluded.state, excluded.since) > (e.position, e.state, e.since)
    RETURNING
        new.owner_id, new.kind, new.slot, new.neighbor_id, new.position, new.state,
        coalesce(old.position, 0) AS old_position, old.state AS old_state
),

marked AS (
    -- A reverse half whose mark by destination is not as its owner's suspension has it owes the ARCHIVE or the RESTORE to its edge, which
    -- is the one the other way from where the row lies (9: ARCHIVE, 11: RESTORE by destination). So whatever came too late for a
    -- suspension's walk is settled.
    INSERT INTO outbox (id, slot, peer_slot, kind, source_id, destination_id, operation, due)
    SELECT
        uuidv7(), m.slot, (hashint8extended(m.neighbor_id, 0) & ((SELECT slots FROM shard) - 1))::smallint, m.kind, m.owner_id,
        m.neighbor_id, CASE WHEN s.standing IS NULL THEN 11 ELSE 9 END, now()
    FROM merged AS m
    LEFT JOIN LATERAL (
        SELECT p.standing
        FROM archived_accounts AS p
        WHERE p.account_id = m.owner_id AND p.kind = m.kind AND p.slot = m.slot AND p.standing > 0
            AND (SELECT any_suspended FROM clock)
        OFFSET 0
    ) AS s ON true
    WHERE CASE WHEN s.standing IS NULL THEN m.state IN (4, 5) ELSE m.state IN (1, 3) END
),

counted AS (
    -- What the rows replaced and what they are now, summed to one change per degree.
    INSERT INTO degrees AS e (owner_id, direction, kind, state, slot, degree)
    SELECT owner_id, direction, kind, state, slot, sum(change)
    FROM (
        SELECT owner_id, 1::smallint AS direction, kind, state, slot, 1 AS change
        FROM decided WHERE position > 0 AND (old_position = 0 OR old_state <> state)
        UNION ALL
        SELECT owner_id, 1::smallint, kind, old_state, slot, -1
        FROM decided WHERE old_position > 0 AND old_state <> state
        UNION ALL
        SELECT owner_id, 2::smallint, kind, state, slot, 1
        FROM merged WHERE old_position = 0 OR old_state <> state
        UNION ALL
        SELECT owner_id, 2::smallint, kind, old_state, slot, -1
        FROM merged WHERE old_position > 0 AND old_state <> state
    ) AS change
    GROUP BY owner_id, direction, kind, state, slot
    HAVING sum(change) <> 0
    ORDER BY owner_id, direction, kind, state, slot
    ON CONFLICT (owner_id, direction, kind, state, slot) DO UPDATE SET degree = e.degree + excluded.degree
    RETURNING 1
),

noted AS (
    -- For those who watch: what changed its state or its since, of the kinds that are watched.
    INSERT INTO events (id, source_id, destination_id, position, since, bucket, slot, kind, state, previous_state)
    SELECT
        nextval('events_id_seq'), owner_id, neighbor_id, position, since, (SELECT bucket FROM clock), slot, kind, state,
        CASE old_position WHEN 0 THEN 0 ELSE old_state END
    FROM told
    WHERE kind <> ALL (%(unwatched)s::smallint[]) AND CASE
        WHEN old_position = 0 THEN state <> 6
        ELSE (old_state, old_since) <> (state, since)
    END
),

owed AS (
    INSERT INTO outbox (id, slot, peer_slot, kind, source_id, destination_id, operation, due)
    SELECT
        o.id, t.slot, t.peer_slot, t.kind, t.owner_id, t.neighbor_id, o.operation,
        now() + %(first_due_s)s::float8 * interval '1 second'
    FROM told AS t
    CROSS JOIN LATERAL (
        VALUES (t.outbox_id, 0::smallint), (t.counter_id, (%(counters)s::smallint[])[t.operation])
    ) AS o (id, operation)
    WHERE o.id IS NOT NULL
),

remembered AS (
    -- Last, and after the degrees (hence the join): a twin's receipt may make this wait, and whoever waits must hold nothing that
    -- the twin still needs. Without ON CONFLICT: a twin that came first fails this batch, and its items run again one by one.
    INSERT INTO receipts (actor_id, namespace, id, slot, fingerprint, outcome, position, state, since)
    SELECT
        k.actor_id, k.namespace, k.id, t.slot, k.fingerprint,
        CASE
            WHEN t.old_position = 0 AND t.state = 6 THEN 2
            WHEN t.old_position > 0 AND t.old_state = t.state AND t.old_since = t.since THEN 2
            ELSE 1
        END,
        t.position, t.state, t.since
    FROM unnest(
        %(r_item)s::integer[], %(r_actor)s::bigint[], %(r_namespace)s::smallint[], %(r_id)s::text[], %(r_fingerprint)s::bigint[]
    ) AS k (item, actor_id, namespace, id, fingerprint)
    JOIN told AS t ON t.item = k.item
    CROSS JOIN (SELECT count(*) AS n FROM counted) AS after_degrees
    WHERE after_degrees.n >= 0
    ORDER BY k.actor_id, k.namespace, k.id, t.slot
),

struck AS (
    -- Delivered meanwhile. What the relay holds is left to it: it will find it delivered.
    DELETE FROM outbox
    WHERE ctid = ANY (ARRAY(
        SELECT o.place
        FROM unnest(%(o_peer_slot)s::smallint[], %(o_id)s::uuid[]) AS d (peer_slot, id)
        CROSS JOIN LATERAL (
            SELECT p.ctid AS place FROM outbox AS p WHERE p.peer_slot = d.peer_slot AND p.id = d.id FOR UPDATE SKIP LOCKED
        ) AS o
    ))
)

SELECT
    a.item, a.owned,
    t.position, t.state, t.since, t.old_position, t.old_state, t.old_since, t.outbox_id, t.counter_id,
    a.fingerprint, a.outcome, a.r_position, a.r_state, a.r_since, a.ahead, c.item IS NOT NULL,
    a.suspended, a.r_reason
FROM asked AS a
LEFT JOIN told AS t ON t.item = a.item
LEFT JOIN crowded AS c ON c.item = a.item
UNION ALL
-- One row for all reverse versions: the items whose slot is owned here.
SELECT item, true, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM arrived WHERE owned;
