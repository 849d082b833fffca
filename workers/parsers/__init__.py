"""From an answer's text to a message with reasoning and tool calls."""
