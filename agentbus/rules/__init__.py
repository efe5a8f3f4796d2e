"""Pure decisions: functions of (state, event, now). No I/O, no clock, no logging."""
