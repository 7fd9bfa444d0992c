"""How ranks are started, kept together, and how gradients travel between them.

Importing this package makes ``Trainer(strategy="accelerated_ddp")`` known to Lightning.
"""

from fasttrain.strategy.registration import register

register()
