-- name: edges
-- Every edge of one kind (0: all that are known) in one state (0: all) whose source lives here: one statement, so one snapshot. COPY takes no
-- parameters; what stands in braces are numbers and names that were checked.
COPY (
    SELECT
        e.owner_id, e.neighbor_id, ({kinds}::text[])[array_position({numbers}::smallint[], e.kind)],
        ({states}::text[])[e.state], e.position, e.since
    FROM forward AS e
    WHERE e.position > 0 AND e.kind = ANY ({numbers}::smallint[]) AND ({kind}::smallint = 0 OR e.kind = {kind}::smallint) AND ({state}::smallint = 0 OR e.state = {state}::smallint)
        AND e.slot IN (SELECT s.slot FROM slots AS s WHERE s.owned)
) TO STDOUT;
