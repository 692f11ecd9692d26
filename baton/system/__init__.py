"""Below everything: clock, frames over a socket pair, killable children."""
