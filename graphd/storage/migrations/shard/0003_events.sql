-- What happened to edges, for those who watch: a row for every change of state or since, written in the transaction of the forward half. Its
-- id is drawn after the edge's row is locked, so ids of one edge rise in the order of its changes.
-- Kept for some days in a ring of partitions by time (half a day each): the oldest are emptied whole, never row by row.
CREATE SEQUENCE events_id_seq AS bigint CACHE 1;

CREATE TABLE events (
    id bigint NOT NULL,
    source_id bigint NOT NULL,
    destination_id bigint NOT NULL,
    position bigint NOT NULL,
    since bigint NOT NULL,
    bucket smallint NOT NULL,
    slot smallint NOT NULL,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    previous_state smallint NOT NULL,
    PRIMARY KEY (id, bucket)
) PARTITION BY LIST (bucket);

CREATE TABLE events_0 PARTITION OF events FOR VALUES IN (0);
CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1);
CREATE TABLE events_2 PARTITION OF events FOR VALUES IN (2);
CREATE TABLE events_3 PARTITION OF events FOR VALUES IN (3);
CREATE TABLE events_4 PARTITION OF events FOR VALUES IN (4);
CREATE TABLE events_5 PARTITION OF events FOR VALUES IN (5);
CREATE TABLE events_6 PARTITION OF events FOR VALUES IN (6);
CREATE TABLE events_7 PARTITION OF events FOR VALUES IN (7);
CREATE TABLE events_8 PARTITION OF events FOR VALUES IN (8);
CREATE TABLE events_9 PARTITION OF events FOR VALUES IN (9);
CREATE TABLE events_10 PARTITION OF events FOR VALUES IN (10);
CREATE TABLE events_11 PARTITION OF events FOR VALUES IN (11);
CREATE TABLE events_12 PARTITION OF events FOR VALUES IN (12);
CREATE TABLE events_13 PARTITION OF events FOR VALUES IN (13);
CREATE TABLE events_14 PARTITION OF events FOR VALUES IN (14);
CREATE TABLE events_15 PARTITION OF events FOR VALUES IN (15);

-- The last id that is not kept any more: who would go on before it has missed something.
CREATE TABLE events_floor (
    only_row boolean PRIMARY KEY DEFAULT true,
    id bigint NOT NULL,
    CONSTRAINT events_floor_one CHECK (only_row)
);

INSERT INTO events_floor (id) VALUES (0);
