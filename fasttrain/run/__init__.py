"""From a composed config to a finished run: what is decided before torch is imported, and what comes after."""
