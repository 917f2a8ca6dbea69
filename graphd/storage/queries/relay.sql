-- In these statements the rows are named by an array of their places, which is made once. As a join, a planner that believes the outbox
-- empty (one that was full, then emptied and analyzed, then full again) makes the list anew for every row: 27 s for 4,000 rows.

-- name: lease
-- Rows that are due, of slots owned here and owed to slots that can be reached now, put off so that no other relay takes them
-- meanwhile. No lock is held while they are delivered. Each attempt is counted before it is made. Slots asked for first go first, and in
-- each slot what is owed for longest.
UPDATE outbox AS o
SET due = now() + %(lease_s)s::float8 * interval '1 second', attempts = o.attempts + 1
WHERE o.ctid = ANY (ARRAY(
    SELECT d.place
    FROM unnest(%(reachable)s::smallint[]) AS r (slot)
    CROSS JOIN LATERAL (
        SELECT p.ctid AS place
        FROM outbox AS p
        WHERE p.peer_slot = r.slot AND p.due <= now() AND NOT p.parked
            AND (SELECT s.owned FROM slots AS s WHERE s.slot = p.slot)
        ORDER BY p.id
        LIMIT %(row_count)s::integer
        FOR UPDATE SKIP LOCKED
    ) AS d
    LIMIT %(row_count)s::integer
))
RETURNING o.slot, o.peer_slot, o.id, o.kind, o.source_id, o.destination_id, o.operation, o.attempts;

-- name: put_off
-- Rows that could not be delivered now become due again after a pause that doubles with each attempt. What another relay holds is its own.
UPDATE outbox AS o
SET due = now() + least(%(most_s)s::float8, %(first_s)s::float8 * 2 ^ least(o.attempts - 1, 30)) * interval '1 second'
WHERE o.ctid = ANY (ARRAY(
    SELECT d.place
    FROM unnest(%(peer_slot)s::smallint[], %(id)s::uuid[]) AS k (peer_slot, id)
    CROSS JOIN LATERAL (
        SELECT p.ctid AS place FROM outbox AS p WHERE p.peer_slot = k.peer_slot AND p.id = k.id FOR UPDATE SKIP LOCKED
    ) AS d
));

-- name: park
-- Rows that can never apply are put aside and shown, so that the others go on.
UPDATE outbox AS o
SET parked = true, problem = (%(problem)s::text[])[array_position(%(id)s::uuid[], o.id)]
WHERE o.ctid = ANY (ARRAY(
    SELECT d.place
    FROM unnest(%(peer_slot)s::smallint[], %(id)s::uuid[]) AS k (peer_slot, id)
    CROSS JOIN LATERAL (
        SELECT p.ctid AS place FROM outbox AS p WHERE p.peer_slot = k.peer_slot AND p.id = k.id FOR UPDATE SKIP LOCKED
    ) AS d
));

-- name: backlog
-- How much is owed, how old the oldest is, and how much is parked.
SELECT
    count(*) FILTER (WHERE NOT parked),
    coalesce(extract(epoch FROM now() - min(uuid_extract_timestamp(id)) FILTER (WHERE NOT parked)), 0)::float8,
    count(*) FILTER (WHERE parked)
FROM outbox;

-- name: sweep_receipts
-- Forgets receipts of a namespace older than they are kept for, some at a time.
DELETE FROM receipts
WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM receipts AS r
    WHERE r.created < now() - %(keep_s)s::float8 * interval '1 second' AND r.namespace = %(namespace)s::smallint
    LIMIT %(row_count)s::integer
));
