-- When rows older than the purge horizon were last brought to this shard: by an import, or by writes marked backfill. In microseconds, by this
-- server's clock. Purge waits one horizon from then on, so that what is brought in several turns meets the tombstones it must not undo. What
-- came before this table was there is not known, so it begins with now. It stands for all slots: a shard that takes a slot over takes the
-- later of both moments.
CREATE TABLE backfilled (
    only_row boolean PRIMARY KEY DEFAULT true,
    at bigint NOT NULL,
    CONSTRAINT backfilled_one CHECK (only_row)
);

INSERT INTO backfilled (at) VALUES ((extract(epoch FROM now()) * 1000000)::bigint);

-- How far purge has come, so that a daemon started again goes on there: 1 forward, 2 reverse.
CREATE TABLE purge_place (
    only_row boolean PRIMARY KEY DEFAULT true,
    owner_id bigint NOT NULL,
    direction smallint NOT NULL,
    CONSTRAINT purge_place_one CHECK (only_row)
);

INSERT INTO purge_place (owner_id, direction) VALUES (-1, 1);
