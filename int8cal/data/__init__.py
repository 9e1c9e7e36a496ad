"""A path becomes feeds: `feeds.open_feeds` is the way in, one file per kind of source."""
