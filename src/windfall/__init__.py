"""Windfall: train on machines that can vanish, without losing work.  `import windfall as wf` gives the SDK's few names."""
