"""The lowest layer: clock, frames over a socket pair, killable children."""
