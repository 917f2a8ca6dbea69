-- name: lock_slot
-- Waits until no writer is in the slot, and keeps all out until the transaction ends. The statement after it sees what they did.
SELECT pg_advisory_xact_lock(%(slot)s::bigint);

-- name: set
-- Sets or clears the suspension of an account in some kinds, under a generation above all that it had; answers (kind, generation), or nothing
-- where the slot is not owned.
INSERT INTO archived_accounts AS e (account_id, generation, slot, kind, standing)
SELECT %(account_id)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, s.slot, k.kind, %(standing)s::smallint
FROM slots AS s
CROSS JOIN unnest(%(kinds)s::smallint[]) AS k (kind)
WHERE s.slot = %(slot)s::smallint AND s.owned
ORDER BY k.kind
ON CONFLICT (account_id, kind, slot) DO UPDATE SET
    standing = excluded.standing, generation = greatest(excluded.generation, e.generation + 1)
RETURNING kind, generation;

-- name: generations
-- The generations that stand now.
SELECT kind, generation
FROM archived_accounts
WHERE account_id = %(account_id)s::bigint AND kind = ANY (%(kinds)s::smallint[]) AND slot = %(slot)s::smallint;

-- name: forget
-- A restored account all of whose edges are is an account like others.
DELETE FROM archived_accounts
WHERE account_id = %(account_id)s::bigint AND kind = %(kind)s::smallint AND slot = %(slot)s::smallint
    AND generation = %(generation)s::bigint AND standing = 0;

-- name: news
-- Accounts suspended or restored after a generation, in its order: (account, kind, suspended, generation); the first row holds this server's
-- clock.
SELECT NULL, NULL, NULL, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
UNION ALL (
    SELECT account_id, kind, standing > 0, generation
    FROM archived_accounts
    WHERE generation > %(after)s::bigint
    ORDER BY generation
    LIMIT %(row_count)s::integer
);
