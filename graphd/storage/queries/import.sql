-- name: owned_slots
-- Which of the slots this shard owns. Asked after lock_slots in the same transaction, the answer holds until its end.
SELECT slot FROM slots WHERE owned AND slot = ANY (%(slots)s::smallint[]);

-- name: copy_halves
-- New halves straight into their table and its indexes: that no such row was there is proved by the primary key.
COPY {table} (owner_id, neighbor_id, position, since, slot, kind, state, operation) FROM STDIN (FORMAT binary);

-- name: count_new
-- The degrees of halves that were all new, one change per owner and state, in key order.
INSERT INTO degrees AS e (owner_id, direction, kind, state, slot, degree)
SELECT owner_id, %(direction)s::smallint, %(kind)s::smallint, state, slot, change
FROM unnest(%(owner_id)s::bigint[], %(state)s::smallint[], %(slot)s::smallint[], %(change)s::bigint[])
    AS t (owner_id, state, slot, change)
ORDER BY owner_id, state, slot
ON CONFLICT (owner_id, direction, kind, state, slot) DO UPDATE SET degree = e.degree + excluded.degree;

-- name: merge_halves
-- Joins halves of one direction and kind, each the version (position, state, since), to what is stored, and keeps the degrees: rows in key
-- order, then degrees, as every writer does. What is stored and not older is left alone without a lock; the upsert looks
-- once more, for others may have written meanwhile. Answers how many rows were absent and how many replaced an older version.
WITH given AS MATERIALIZED (
    SELECT t.owner_id, t.slot, t.neighbor_id, t.position, t.state, t.since, t.operation
    FROM unnest(
        %(owner_id)s::bigint[], %(slot)s::smallint[], %(neighbor_id)s::bigint[], %(position)s::bigint[], %(state)s::smallint[],
        %(since)s::bigint[], %(operation)s::smallint[]
    ) AS t (owner_id, slot, neighbor_id, position, state, since, operation)
    LEFT JOIN LATERAL (
        SELECT p.position, p.state, p.since FROM {table} AS p
        WHERE p.owner_id = t.owner_id AND p.kind = %(kind)s::smallint AND p.slot = t.slot AND p.neighbor_id = t.neighbor_id
        OFFSET 0
    ) AS e ON true
    WHERE e.position IS NULL OR (t.position, t.state, t.since) > (e.position, e.state, e.since)
),

merged AS (
    INSERT INTO {table} AS e (owner_id, neighbor_id, position, since, slot, kind, state, operation)
    SELECT owner_id, neighbor_id, position, since, slot, %(kind)s::smallint, state, operation
    FROM given
    ORDER BY owner_id, slot, neighbor_id
    ON CONFLICT (owner_id, kind, slot, neighbor_id) DO UPDATE SET
        position = excluded.position, state = excluded.state, since = excluded.since, operation = excluded.operation
    WHERE (excluded.position, excluded.state, excluded.since) > (e.position, e.state, e.since)
    RETURNING new.owner_id, new.slot, new.state, coalesce(old.position, 0) AS old_position, old.state AS old_state
),

counted AS (
    INSERT INTO degrees AS e (owner_id, direction, kind, state, slot, degree)
    SELECT owner_id, %(direction)s::smallint, %(kind)s::smallint, state, slot, sum(change)
    FROM (
        SELECT owner_id, state, slot, 1 AS change FROM merged WHERE old_position = 0 OR old_state <> state
        UNION ALL
        SELECT owner_id, old_state, slot, -1 FROM merged WHERE old_position > 0 AND old_state <> state
    ) AS change
    GROUP BY owner_id, state, slot
    HAVING sum(change) <> 0
    ORDER BY owner_id, state, slot
    ON CONFLICT (owner_id, direction, kind, state, slot) DO UPDATE SET degree = e.degree + excluded.degree
    RETURNING 1
)

SELECT count(*) FILTER (WHERE old_position = 0), count(*) FILTER (WHERE old_position > 0) FROM merged;

-- name: over_limit
-- How many accounts of this shard have more ACTIVE edges of a kind than live writes would allow.
SELECT count(*) FROM degrees
WHERE direction = 1 AND kind = %(kind)s::smallint AND state = 1 AND degree > %(max_out_degree)s::bigint;
