"""BatchNorm options that leave a network as its library builds it: conf/model's defaults."""

from fasttrain.config.schema import BatchNormConfig

OWN = BatchNormConfig(
    zero_init_last=None,
    momentum=None,
    eps=None,
    ghost_size=None,
    frozen_scale=None,
    bias_lr_scale=1.0,
    sync=False,
    recalibrate_images=0,
)
