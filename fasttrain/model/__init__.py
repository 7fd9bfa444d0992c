"""Networks by their names (timm's and the own ones) and the BatchNorm changes."""
