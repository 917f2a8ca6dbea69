"""Importing files of edges. Parsing and sorting are pure (layout, lines, blocks, versions, mastodon, runs); scan reads, load writes, job is
the whole."""
