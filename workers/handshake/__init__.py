"""How engines get to know each other, in the main process, without NIXL."""
