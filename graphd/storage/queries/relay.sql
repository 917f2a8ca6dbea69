-- name: lease
-- Rows that are due, of slots owned here and owed to slots that can be reached now, put off so that no other relay takes them
-- meanwhile. No lock is held while they are delivered. Each attempt is counted before it is made.
UPDATE outbox AS o
SET due = now() + %(lease_s)s::float8 * interval '1 second', attempts = o.attempts + 1
FROM (
    SELECT p.slot, p.id
    FROM outbox AS p
    WHERE p.due <= now() AND NOT p.parked
        AND p.slot IN (SELECT s.slot FROM slots AS s WHERE s.owned)
        AND (hashint8extended(p.destination_id, 0) & %(mask)s::bigint)::smallint = ANY (%(reachable)s::smallint[])
    ORDER BY p.due
    LIMIT %(row_count)s::integer
    FOR UPDATE SKIP LOCKED
) AS due
WHERE o.slot = due.slot AND o.id = due.id
RETURNING o.slot, o.id, o.kind, o.source_id, o.destination_id, o.attempts;

-- name: put_off
-- Rows that could not be delivered now become due again after a pause.
UPDATE outbox AS o
SET due = now() + k.pause_s * interval '1 second'
FROM unnest(%(slot)s::smallint[], %(id)s::uuid[], %(pause_s)s::float8[]) AS k (slot, id, pause_s)
WHERE o.slot = k.slot AND o.id = k.id;

-- name: park
-- Rows that can never apply are put aside and shown, so that the others go on.
UPDATE outbox AS o
SET parked = true, problem = k.problem
FROM unnest(%(slot)s::smallint[], %(id)s::uuid[], %(problem)s::text[]) AS k (slot, id, problem)
WHERE o.slot = k.slot AND o.id = k.id;

-- name: backlog
-- How much is owed, how old the oldest is, and how much is parked.
SELECT
    count(*) FILTER (WHERE NOT parked),
    coalesce(extract(epoch FROM now() - min(uuid_extract_timestamp(id)) FILTER (WHERE NOT parked)), 0)::float8,
    count(*) FILTER (WHERE parked)
FROM outbox;

-- name: sweep_receipts
-- Forgets receipts older than they are kept for, some at a time.
DELETE FROM receipts
WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM receipts AS r
    WHERE r.created < now() - %(keep_s)s::float8 * interval '1 second' AND r.namespace = 1
    LIMIT %(row_count)s::integer
));
