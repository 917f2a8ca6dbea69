-- The catalog: what every process of a cluster must agree on.

-- Constants of the cluster, and the epoch that rises with every change of what follows.
CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id uuid NOT NULL,
    slots integer NOT NULL,
    token_key bytea NOT NULL,
    epoch bigint NOT NULL
);

CREATE TABLE shards (
    name text PRIMARY KEY,
    ordinal integer NOT NULL UNIQUE,
    incarnation uuid NOT NULL
);

CREATE TABLE slots (
    slot smallint PRIMARY KEY,
    shard text NOT NULL REFERENCES shards (name)
);

CREATE TABLE kinds (
    number smallint PRIMARY KEY CHECK (number > 0),
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9_-]{0,31}$'),
    allow_self boolean NOT NULL DEFAULT false,
    max_out_degree bigint NOT NULL DEFAULT 0 CHECK (max_out_degree >= 0)
);

INSERT INTO kinds (number, name) VALUES (1, 'follow');

-- Files imported, by checksum, so that a second run of the same file gives its rows the same position.
CREATE TABLE imports (
    checksum text NOT NULL,
    kind smallint NOT NULL,
    position bigint NOT NULL,
    started timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (checksum, kind)
);

-- Every change raises the epoch and wakes the routers, whoever makes it.
CREATE FUNCTION raise_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET epoch = epoch + 1;
    PERFORM pg_notify('graphd_topology', '');
    RETURN NULL;
END
$$;

CREATE TRIGGER shards_epoch AFTER INSERT OR UPDATE OR DELETE ON shards FOR EACH STATEMENT EXECUTE FUNCTION raise_epoch();
CREATE TRIGGER slots_epoch AFTER INSERT OR UPDATE OR DELETE ON slots FOR EACH STATEMENT EXECUTE FUNCTION raise_epoch();
CREATE TRIGGER kinds_epoch AFTER INSERT OR UPDATE OR DELETE ON kinds FOR EACH STATEMENT EXECUTE FUNCTION raise_epoch();
