"""Networks by timm's names and the BatchNorm changes."""
