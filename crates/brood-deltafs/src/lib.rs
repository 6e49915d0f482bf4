//! Layer stacks: overlay mounts, freezing, squashing, diffs and disk limits.
