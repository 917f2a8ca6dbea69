-- What one shard stores. Every per-slot table has the slot in its primary key, so that a slot can be published as one.

-- Which shard this is. A router speaks to it only if cluster and incarnation are those of the catalog.
CREATE TABLE shard (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    name text NOT NULL,
    cluster uuid NOT NULL,
    incarnation uuid NOT NULL,
    slots integer NOT NULL
);

-- The ownership fence: every statement reads it under a shared advisory lock of the slot.
CREATE TABLE slots (
    slot smallint PRIMARY KEY,
    owned boolean NOT NULL
);

-- The forward halves: owner is the source, neighbor the destination. A row at position 0 is absent to every read.
CREATE TABLE forward (
    owner_id bigint NOT NULL,
    neighbor_id bigint NOT NULL,
    position bigint NOT NULL,
    since bigint NOT NULL,
    slot smallint NOT NULL,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    operation smallint NOT NULL,
    PRIMARY KEY (owner_id, kind, slot, neighbor_id)
);

-- Serves every list, in every state, in both orders.
CREATE INDEX forward_list ON forward (owner_id, kind, state, slot, since, neighbor_id);

-- The reverse halves: owner is the destination, neighbor the source. The same columns, so one set of statements serves both.
CREATE TABLE reverse (
    owner_id bigint NOT NULL,
    neighbor_id bigint NOT NULL,
    position bigint NOT NULL,
    since bigint NOT NULL,
    slot smallint NOT NULL,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    operation smallint NOT NULL,
    PRIMARY KEY (owner_id, kind, slot, neighbor_id)
);

CREATE INDEX reverse_list ON reverse (owner_id, kind, state, slot, since, neighbor_id);

-- How many halves an owner has. Never clamped and never checked: a wrong degree is drift, to be seen and mended.
-- The room left in each page keeps updates of a hot degree on it, without touching the index.
CREATE TABLE degrees (
    owner_id bigint NOT NULL,
    degree bigint NOT NULL,
    direction smallint NOT NULL,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    slot smallint NOT NULL,
    PRIMARY KEY (owner_id, direction, kind, state, slot)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Versions still owed to a slot of another shard. It names the edge alone: whoever delivers reads the forward half as it is then.
-- The key begins with the slot owed to: what a shard that is away is owed stands in nobody's way, however much it grows. There is no index
-- by due time: most rows live for milliseconds, and what has been put off is due again within seconds, so the relay reads past it.
CREATE TABLE outbox (
    id uuid NOT NULL,
    source_id bigint NOT NULL,
    destination_id bigint NOT NULL,
    due timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    slot smallint NOT NULL,
    peer_slot smallint NOT NULL,
    kind smallint NOT NULL,
    parked boolean NOT NULL DEFAULT false,
    problem text,
    PRIMARY KEY (peer_slot, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000
);

-- The remembered answers to writes that carried a request id. namespace 1: callers'; 2: internal ones.
CREATE TABLE receipts (
    actor_id bigint NOT NULL,
    fingerprint bigint NOT NULL,
    position bigint,
    since bigint,
    created timestamptz NOT NULL DEFAULT now(),
    slot smallint NOT NULL,
    namespace smallint NOT NULL,
    state smallint,
    outcome smallint NOT NULL,
    id text NOT NULL,
    PRIMARY KEY (actor_id, namespace, id, slot)
);

-- Receipts are swept by age, and rows lie on disk in the order of their age.
CREATE INDEX receipts_created ON receipts USING brin (created) WITH (pages_per_range = 32, autosummarize = on);
