-- name: digest
-- How many halves a table holds, and two sums over a hash of each whole edge (xor and plus): for the forward and the reverse halves of
-- the same edges, over all shards, they are the same.
SELECT count(*), coalesce(bit_xor(e.hash), 0)::bigint, coalesce(sum(e.hash::numeric), 0)::text
FROM (
    SELECT
        hash_record_extended(
            CASE
                WHEN %(forward)s::boolean THEN ROW(h.owner_id, h.neighbor_id, h.kind, h.position, h.state, h.since)
                ELSE ROW(h.neighbor_id, h.owner_id, h.kind, h.position, h.state, h.since)
            END,
            0
        ) AS hash
    FROM {table} AS h
    WHERE h.position > 0
) AS e;

-- name: recount
-- Degrees against a count of the halves they stand for: how many there are, and how many are wrong.
WITH counted AS (
    SELECT h.owner_id, 1 AS direction, h.kind, h.state, h.slot, count(*) AS degree
    FROM forward AS h
    WHERE h.position > 0
    GROUP BY h.owner_id, h.kind, h.state, h.slot
    UNION ALL
    SELECT h.owner_id, 2, h.kind, h.state, h.slot, count(*)
    FROM reverse AS h
    WHERE h.position > 0
    GROUP BY h.owner_id, h.kind, h.state, h.slot
)
SELECT count(*), count(*) FILTER (WHERE coalesce(d.degree, 0) <> coalesce(c.degree, 0))
FROM degrees AS d
FULL JOIN counted AS c USING (owner_id, direction, kind, state, slot);

-- name: owed
-- Rows in the outbox, parked ones too.
SELECT count(*) FROM outbox;

-- name: largest
-- The accounts with most followers here: (account, followers).
SELECT d.owner_id, d.degree
FROM degrees AS d
WHERE d.direction = 2 AND d.kind = %(kind)s::smallint AND d.state = 1
ORDER BY d.degree DESC, d.owner_id
LIMIT %(row_count)s::integer;

-- name: sources
-- Some accounts that live here and follow others, in the order of their ids.
SELECT DISTINCT d.owner_id
FROM degrees AS d
WHERE d.direction = 1 AND d.kind = %(kind)s::smallint AND d.state = 1 AND d.degree > 0
ORDER BY d.owner_id
LIMIT %(row_count)s::integer;
