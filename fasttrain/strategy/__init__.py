"""How ranks are started and kept together."""
