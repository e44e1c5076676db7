"""The supervisor's room: what serve knows and decides. Blocks only in its wait; never imports an operation."""
