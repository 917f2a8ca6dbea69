-- Whether changes of a kind are events for those who watch.
ALTER TABLE kinds ADD COLUMN events boolean NOT NULL DEFAULT true;
