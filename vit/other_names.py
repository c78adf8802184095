"""What other libraries (timm, transformers, Lightning, Keras, Ultralytics) call the keys of this project, for hints."""

MODEL = {  # name elsewhere -> option of a model
    "embed_dim": "dim", "hidden_size": "dim", "hidden_dim": "dim", "d_model": "dim", "width": "dim",
    "num_layers": "depth", "num_hidden_layers": "depth", "layers": "depth", "n_layers": "depth",
    "num_attention_heads": "num_heads", "n_heads": "num_heads", "nhead": "num_heads",
    "img_size": "image_size", "input_size": "image_size", "resolution": "image_size", "patch": "patch_size",
    "imgsz": "image_size", "target_size": "image_size", "size": "image_size",
    "in_channels": "in_chans", "num_channels": "in_chans", "num_labels": "num_classes", "n_classes": "num_classes",
    "intermediate_size": "mlp_ratio", "mlp_dim": "mlp_ratio", "dim_feedforward": "mlp_ratio",
    "drop_rate": "dropout", "dropout_rate": "dropout", "hidden_dropout_prob": "dropout",
    "attn_drop_rate": "attention_dropout", "attention_probs_dropout_prob": "attention_dropout",
    "drop_path_rate": "drop_path", "stochastic_depth": "drop_path", "stochastic_depth_prob": "drop_path",
    "act_layer": "activation", "hidden_act": "activation", "norm_layer": "norm", "layer_norm_eps": "norm_eps",
    "init_values": "layer_scale", "layerscale_value": "layer_scale", "reg_tokens": "registers",
    "num_register_tokens": "registers", "num_registers": "registers", "global_pool": "pool", "pos_embed": "positions",
}
RUN = {  # name elsewhere -> key of a run
    "learning_rate": "recipe.optimizer.lr", "wd": "recipe.optimizer.weight_decay", "opt": "recipe.optimizer.name",
    "optim": "recipe.optimizer.name", "llrd": "recipe.optimizer.layer_decay",
    "max_epochs": "recipe.epochs", "num_epochs": "recipe.epochs", "num_train_epochs": "recipe.epochs",
    "bs": "recipe.batch_size", "train_batch_size": "recipe.batch_size",
    "per_device_train_batch_size": "recipe.batch_size",
    "accumulate_grad_batches": "recipe.accumulate", "gradient_accumulation_steps": "recipe.accumulate",
    "grad_accum_steps": "recipe.accumulate", "gradient_clip_val": "recipe.clip", "clip_grad": "recipe.clip",
    "max_grad_norm": "recipe.clip", "ema_decay": "recipe.ema", "model_ema": "recipe.ema",
    "model_ema_decay": "recipe.ema", "sched": "recipe.schedule.name", "scheduler": "recipe.schedule.name",
    "lr_scheduler": "recipe.schedule.name", "lr_scheduler_type": "recipe.schedule.name",
    "warmup_epochs": "recipe.schedule.warmup", "warmup_steps": "recipe.schedule.warmup",
    "warmup_ratio": "recipe.schedule.warmup", "min_lr": "recipe.schedule.final",
    "smoothing": "recipe.loss.label_smoothing", "label_smoothing_factor": "recipe.loss.label_smoothing",
    "aa": "augment", "auto_augment": "augment", "reprob": "recipe.augment.erase",
    "random_erase": "recipe.augment.erase", "mixup_alpha": "recipe.mixup",
    "color_jitter": "recipe.augment.jitter", "train_crop": "recipe.crop", "aug_repeats": "recipe.repeats",
    "num_aug_repeats": "recipe.repeats", "num_repeats": "recipe.repeats", "repeated_aug": "recipe.repeats",
    "gpus": "trainer.devices", "num_gpus": "trainer.devices", "nproc_per_node": "trainer.devices",
    "world_size": "trainer.devices", "nodes": "trainer.num_nodes", "nnodes": "trainer.num_nodes",
    "seed_everything": "seed", "random_seed": "seed", "amp": "precision", "fp16": "precision", "bf16": "precision",
    "torchcompile": "compile", "torch_compile": "compile",
    "pretrained": "init_from", "weights": "init_from", "model_name_or_path": "init_from",
    "finetune_from": "init_from", "ckpt_path": "resume", "resume_from_checkpoint": "resume",
    "fast_dev_run": "debug", "limit_train_batches": "debug", "limit_val_batches": "debug",
    "limit_test_batches": "debug", "limit_predict_batches": "debug", "min_epochs": "recipe.epochs",
    "stochastic_weight_avg": "recipe.average_epochs", "swa": "recipe.average_epochs",
    "auto_scale_batch_size": "recipe.batch_size", "auto_select_gpus": "trainer.devices",
    "amp_backend": "precision", "amp_level": "precision", "report_to": "logger", "log_wandb": "logger",
    "save_steps": "callbacks.every_steps", "every_n_train_steps": "callbacks.every_steps",
    "early_stopping": "callbacks.patience", "early_stopping_patience": "callbacks.patience",
    "dir": "data.root", "path": "data.root", "folder": "data.root", "data_dir": "data.root", "data_path": "data.root",
    "dataset": "data", "num_workers": "data.workers",
    "dataloader_num_workers": "data.workers", "output_dir": "run_dir", "default_root_dir": "runs",
    "save_dir": "run_dir", "log_dir": "run_dir", "output": "run_dir", "output_path": "run_dir", "out": "run_dir",
    "out_dir": "run_dir", "project": "runs", "run_name": "name", "experiment_name": "name",
    "log_interval": "trainer.log_every_n_steps",
    "logging_steps": "trainer.log_every_n_steps",
    "device": "trainer.accelerator", "cuda": "trainer.accelerator", "use_gpu": "trainer.accelerator",
    "val_split": "data.fractions", "validation_split": "data.fractions", "test_split": "data.fractions",
    "train_split": "data.fractions", "val_size": "data.fractions", "test_size": "data.fractions",
    "train_size": "data.fractions", "valid_pct": "data.fractions", "val_pct": "data.fractions",
    "class_weight": "data.balance", "class_weights": "data.balance", "weighted_loss": "data.balance",
    "weighted_sampler": "data.balance", "oversample": "data.balance", "oversampling": "data.balance",
    "freeze": "finetune", "freeze_backbone": "finetune", "freeze_layers": "finetune", "unfreeze": "finetune",
    "linear_probe": "finetune", "peft": "finetune",
    "arch": "model", "architecture": "model", "backbone": "model", "network": "model",
    "pretrained_model": "init_from", "from_pretrained": "init_from", "use_pretrained": "init_from",
    "pretrained_weights": "init_from",
    "batch": "recipe.batch_size", "lrf": "recipe.schedule.final", "cos_lr": "recipe.schedule.name",
    "criterion": "recipe.loss.name", "loss_fn": "recipe.loss.name", "metric": "callbacks.monitor",
    "early_stop": "callbacks.patience", "early_stopping_rounds": "callbacks.patience",
    "augmentation": "augment", "augmentations": "augment", "data_augmentation": "augment", "aug": "augment",
    "transform": "augment", "transforms": "augment", "rotation": "augment", "degrees": "augment",
    "fliplr": "recipe.augment.hflip", "horizontal_flip": "recipe.augment.hflip", "half": "precision",
    "images": "data.root", "image_dir": "data.root", "image_folder": "data.root", "img_dir": "data.root",
    "photos": "data.root", "input_dir": "data.root", "data_folder": "data.root",
    "color_mode": "data.preprocessing.mode", "grayscale": "data.preprocessing.mode",
    "greyscale": "data.preprocessing.mode",
    "use_wandb": "logger", "use_mlflow": "logger", "use_tensorboard": "logger",
}

STEPS = "the length of a run is recipe.epochs, and the log states the number of steps; trainer.max_time limits its time"
VALIDATION = ("a run is validated after each epoch, which selects the best one; callbacks.every_steps saves a "
              "checkpoint in between")
FINITE = "each run stops before an update with NaN or infinite values, and names the step and the samples"
SAMPLER = "the project divides the samples among the processes itself, the same for any number of them"
PROCESSORS = "trainer.accelerator is auto, cpu, gpu or mps"
CHECKPOINTS = "each run saves last.ckpt, from which it can be resumed, and best.ckpt, of which model/ is made"
GPUS = ("trainer.devices is the number of GPUs, and the environment variable CUDA_VISIBLE_DEVICES selects them by "
        "their numbers")
SPLIT_FOLDERS = "data.root is the folder that contains the folders train, val and test"
NO_KEY = {  # option of Lightning's Trainer and of others without a key of this project -> why, and what it has instead
    "profiler": "callbacks takes a callback of yours that sets one (docs/guides/speed.md); vit bench step measures a "
                "training step, metrics.csv has images per second and the share of time that waits for data",
    "detect_anomaly": FINITE, "terminate_on_nan": FINITE,
    "val_check_interval": VALIDATION, "check_val_every_n_epoch": VALIDATION, "eval_steps": VALIDATION,
    "eval_strategy": VALIDATION, "evaluation_strategy": VALIDATION,
    "overfit_batches": "debug=true trains on a few batches; to overfit, use a data set of a few samples with "
                       "augment=none",
    "max_steps": STEPS, "min_steps": STEPS,
    "num_sanity_val_steps": "the data is checked at the start and a run with init_from is validated first; debug=true "
                            "tries all phases in a minute",
    "gradient_clip_algorithm": "recipe.clip limits the joint norm of all gradients",
    "track_grad_norm": "each run logs train/grad_norm, the norm of the gradient before clipping; recipe.clip limits it",
    "enable_progress_bar": "the bar is shown on a terminal only; elsewhere each epoch is one line",
    "enable_checkpointing": CHECKPOINTS, "save_best": CHECKPOINTS, "save_best_only": CHECKPOINTS,
    "save_top_k": CHECKPOINTS,
    "enable_model_summary": "the log has the size of the model; vit explain MODEL shows its layers",
    "weights_summary": "the log has the size of the model; vit explain MODEL shows its layers",
    "benchmark": "torch.backends.cudnn.benchmark is as torch has it; compile=true and data.cache make steps faster",
    "inference_mode": "validation always runs without gradients",
    "use_distributed_sampler": SAMPLER, "replace_sampler_ddp": SAMPLER,
    "reload_dataloaders_every_n_epochs": "the samples and their order are a function of seed and epoch",
    "sync_batchnorm": "each process has its own statistics of BatchNorm; the models of this project have LayerNorm",
    "plugins": "the checkpoints are written by the project; strategy._target_ takes a strategy of Lightning",
    "barebones": "logger=csv, report=false and calibrate=none leave out what a run can leave out",
    "auto_lr_find": "-m hydra/sweeper=optuna searches for recipe.optimizer.lr",
    "model_registry": "model/ in the run folder is the model; vit push uploads it",
    "enable_autolog_hparams": "every logger gets the whole config",
    "tpu_cores": PROCESSORS, "ipus": PROCESSORS, "hpus": PROCESSORS,
    "gpu": GPUS, "gpu_id": GPUS, "gpu_ids": GPUS, "device_id": GPUS, "device_ids": GPUS, "cuda_device": GPUS,
    "train_dir": SPLIT_FOLDERS, "val_dir": SPLIT_FOLDERS, "valid_dir": SPLIT_FOLDERS, "test_dir": SPLIT_FOLDERS,
    "shuffle": "the training images have another order in each epoch, which is a function of seed and epoch",
}

DDP = "strategy=ddp starts one process per device"
FSDP = "strategy=fsdp shards weights, gradients and optimizer state"
NO_LOGGER = "logger=csv records only metrics.csv, which every run writes"
OPTIONS = {  # option of a group, by its name elsewhere -> what it is here
    "strategy=ddp_spawn": DDP, "strategy=ddp_fork": DDP, "strategy=ddp_notebook": DDP, "strategy=dp": DDP,
    "strategy=ddp_find_unused_parameters_true": "strategy=ddp strategy.options.find_unused_parameters=true",
    "strategy=deepspeed": FSDP, "strategy=fsdp_native": FSDP, "strategy=fsdp2": FSDP, "strategy=model_parallel": FSDP,
    "strategy=auto": f"the default is one process; {DDP}", "strategy=none": f"the default is one process; {DDP}",
    "logger=tensorboard": "logger=default, which is the default, records for TensorBoard",
    "logger=none": NO_LOGGER, "logger=no": NO_LOGGER, "logger=off": NO_LOGGER,
}
