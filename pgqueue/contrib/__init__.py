"""What fits pgqueue to other frameworks. Nothing else of pgqueue imports a framework."""
