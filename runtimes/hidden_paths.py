"""What /proc and /sys show of the host whatever the namespaces, and what no sandbox needs."""

__all__ = ["HIDDEN_PROC_FILES", "HIDDEN_PROC_FOLDERS", "HIDDEN_SYS_FOLDERS"]

HIDDEN_PROC_FILES = (
    # Kernel memory and addresses, keys, logs, timers, and interrupts, whose counts tell when somebody types.
    "interrupts", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount",
    "kpageflags", "latency_stats", "mtrr", "pagetypeinfo", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list",
    "timer_stats", "vmallocinfo",
)  # fmt: skip

HIDDEN_PROC_FOLDERS = ("acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "scsi")

HIDDEN_SYS_FOLDERS = (
    "firmware",
    "devices/virtual/powercap",
    "kernel/debug",
    "kernel/security",
    "kernel/tracing",
)
"""Below /sys, which engines mount and local sandboxes do not have."""
