"""Options that leave a network as its library builds it: conf/model's defaults."""

from fasttrain.config.schema import BatchNormConfig, KernelsConfig, ModelConfig

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
KERNELS = KernelsConfig(stem="auto", batchnorm="auto", max_pool="auto", norm_relu_pool="auto")
MODEL = ModelConfig(
    name="resnet18d",
    num_classes=None,
    pretrained=False,
    init_from=None,
    args={},
    head_init_std=None,
    ensemble=1,
    batchnorm=OWN,
    kernels=KERNELS,
)
