"""What makes a loop a process that a supervisor can run: signals, health, outages, exit codes."""
