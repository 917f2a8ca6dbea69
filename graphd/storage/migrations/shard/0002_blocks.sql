-- What a Block owes beyond its own edge: the removal of the edge the other way, at the forward half that lies with the blocker.
-- operation 0: the version of the row's own edge is owed to its reverse half; else that operation is owed to the edge destination -> source.
ALTER TABLE outbox ADD COLUMN operation smallint NOT NULL DEFAULT 0;

-- An Unblock asks whether its edge still owes such a removal. Blocks are rare, so the index is all but empty; and the outbox is short, so
-- making it holds nobody up for long.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX outbox_counter ON outbox (source_id, destination_id) WHERE operation <> 0;
