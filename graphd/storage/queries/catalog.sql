-- name: cluster
-- The constants of the cluster and its epoch, shards, slots and kinds: everything a process must know, of one snapshot.
SELECT
    c.id::text, c.slots, c.token_key, c.epoch,
    (SELECT array_agg(s.name ORDER BY s.ordinal) FROM shards AS s),
    (SELECT array_agg(s.incarnation::text ORDER BY s.ordinal) FROM shards AS s),
    (SELECT array_agg(s.shard ORDER BY s.slot) FROM slots AS s),
    (SELECT array_agg(k.number ORDER BY k.number) FROM kinds AS k),
    (SELECT array_agg(k.name ORDER BY k.number) FROM kinds AS k),
    (SELECT array_agg(k.allow_self ORDER BY k.number) FROM kinds AS k),
    (SELECT array_agg(k.max_out_degree::text ORDER BY k.number) FROM kinds AS k),
    (SELECT array_agg(k.events ORDER BY k.number) FROM kinds AS k)
FROM cluster AS c;

-- name: epoch
SELECT epoch FROM cluster;

-- name: found_cluster
INSERT INTO cluster (id, slots, token_key, epoch) VALUES (gen_random_uuid(), %(slots)s, %(token_key)s, 1)
ON CONFLICT (only_row) DO NOTHING;

-- name: found_shards
INSERT INTO shards (name, ordinal, incarnation)
SELECT name, ordinal, gen_random_uuid() FROM unnest(%(names)s::text[]) WITH ORDINALITY AS t (name, ordinal);

-- name: found_slots
INSERT INTO slots (slot, shard) SELECT ordinal - 1, shard FROM unnest(%(shards)s::text[]) WITH ORDINALITY AS t (shard, ordinal);

-- name: identify_shard
INSERT INTO shard (name, cluster, incarnation, slots) VALUES (%(name)s, %(cluster)s::uuid, %(incarnation)s::uuid, %(slots)s);

-- name: own_slots
INSERT INTO slots (slot, owned) SELECT ordinal - 1, owned FROM unnest(%(owned)s::boolean[]) WITH ORDINALITY AS t (owned, ordinal);

-- name: assign_slot
UPDATE slots SET shard = %(shard)s WHERE slot = %(slot)s::smallint;

-- name: import_position
-- The position of a file's first import, so that a second run of the same file changes nothing.
INSERT INTO imports (checksum, kind, position) VALUES (%(checksum)s, %(kind)s, %(position)s)
ON CONFLICT (checksum, kind) DO UPDATE SET position = imports.position
RETURNING position;

-- name: lock_kinds
-- One change of the kinds at a time: a number is given once.
LOCK TABLE kinds IN SHARE ROW EXCLUSIVE MODE;

-- name: kind
SELECT number, name, allow_self, max_out_degree, events FROM kinds WHERE name = %(name)s;

-- name: room_for_kinds
-- How many kinds there are, and the highest number that one ever had.
SELECT (SELECT count(*) FROM kinds), last_kind FROM cluster;

-- name: add_kind
-- Under the number after the highest that a kind ever had; a trigger remembers it.
INSERT INTO kinds (number, name, allow_self, max_out_degree, events)
SELECT last_kind + 1, %(name)s, %(allow_self)s, %(max_out_degree)s, %(events)s FROM cluster;

-- name: set_kind
UPDATE kinds SET allow_self = %(allow_self)s, max_out_degree = %(max_out_degree)s, events = %(events)s WHERE name = %(name)s;
