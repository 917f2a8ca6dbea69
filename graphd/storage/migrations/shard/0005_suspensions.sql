-- Accounts that are archived, or removed: what the account would do while that lasts is refused or archived in the statement that would do
-- it. It is set and cleared under the exclusive lock of the account's slot, each time with a higher generation. standing 0: restored, until
-- all its edges are; 1: archived; 2: removed.
CREATE TABLE archived_accounts (
    account_id bigint NOT NULL,
    generation bigint NOT NULL,
    slot smallint NOT NULL,
    kind smallint NOT NULL,
    standing smallint NOT NULL,
    PRIMARY KEY (account_id, kind, slot)
);

-- Routers ask what is new.
CREATE INDEX archived_accounts_generation ON archived_accounts (generation);

-- Why a write was refused, where the state that is stored does not tell.
ALTER TABLE receipts ADD COLUMN reason text;
