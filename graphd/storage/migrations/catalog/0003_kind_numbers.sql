-- The highest number that a kind ever had. Rows on the shards hold numbers: none is given twice, not even after its kind was deleted by hand.
ALTER TABLE cluster ADD COLUMN last_kind smallint NOT NULL DEFAULT 1;
UPDATE cluster SET last_kind = greatest(1, (SELECT max(number) FROM kinds));

CREATE FUNCTION keep_last_kind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET last_kind = greatest(last_kind, (SELECT max(number) FROM kinds));
    RETURN NULL;
END
$$;

CREATE TRIGGER kinds_numbers AFTER INSERT OR UPDATE ON kinds FOR EACH STATEMENT EXECUTE FUNCTION keep_last_kind();
