-- name: last
-- The highest event id drawn so far, by whomever, committed or not; 0 for none.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq;

-- name: mark
-- A transaction id that is higher than that of every transaction which has drawn an event id until now: those had their id before.
SELECT pg_current_xact_id()::text::bigint;

-- name: oldest_running
-- The oldest transaction that may still be under way.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- name: read
-- Events of a range of ids, oldest first.
SELECT e.id, e.source_id, e.destination_id, e.kind, e.state, e.position, e.since, e.previous_state
FROM events AS e
WHERE e.id > %(after)s::bigint AND e.id <= %(upto)s::bigint
    AND (%(kinds)s::smallint[] = '{}' OR e.kind = ANY (%(kinds)s::smallint[]))
    AND (%(slots)s::smallint[] = '{}' OR e.slot = ANY (%(slots)s::smallint[]))
ORDER BY e.id;

-- name: floor
-- The last id that is not kept any more. To be asked after a read: TRUNCATE also empties what an older snapshot sees.
SELECT id FROM events_floor;

-- name: highest
-- The highest id in a partition of the ring; NULL for an empty one.
SELECT max(e.id) FROM events AS e WHERE e.bucket = %(bucket)s::smallint;

-- name: raise_floor
UPDATE events_floor SET id = greatest(id, %(id)s::bigint);
