"""The controller of RebindResource: it plans once, writes the plan into the status, and then
rewrites the annotation of one pod after the other. Every step is decided from the object and the
pods alone (`progress`), so that a process that takes over goes on where the last one ended."""
