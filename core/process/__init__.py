"""What every process of Baton needs, whatever it does."""
