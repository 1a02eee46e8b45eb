"""The embedded engine's process: xllamacpp's server on a loopback port, until it is ended.

It reads its settings as JSON from the environment variable ``DFLASH_ENGINE_CONFIG``.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from dflash_convert.engine import settings

CONFIG = "DFLASH_ENGINE_CONFIG"


def main() -> None:
    import xllamacpp

    config = json.loads(os.environ.pop(CONFIG))
    server = xllamacpp.Server(server_params(xllamacpp, config))
    threading.Event().wait()
    del server


def server_params(xllamacpp: Any, config: dict[str, Any]) -> Any:
    """xllamacpp's CommonParams from the settings that :mod:`dflash_convert.engine.embedded` writes."""
    params = xllamacpp.CommonParams()
    params.model.path = config["target"]
    params.hostnames = ["127.0.0.1"]
    params.port = config["port"]
    params.api_keys = [config["api_key"]]
    params.ui = False
    params.n_parallel = config["parallel"]
    params.n_ctx = config["ctx_size"]
    params.verbosity = config["verbosity"]
    params.cache_ram_mib = 0
    if config["splits_only"]:
        params.warmup = params.fit_params = False
    if config["threads"]:
        params.cpuparams.n_threads = config["threads"]
        params.cpuparams_batch.n_threads = config["threads"]
    if config["gpu_layers"] is not None:
        params.n_gpu_layers = config["gpu_layers"]
    if config["spec_types"]:
        kinds = xllamacpp.common_speculative_type.__members__
        params.speculative.types = [kinds[name] for name in config["spec_types"]]
    if config["drafter"]:
        params.speculative.draft.mparams.path = config["drafter"]
        params.speculative.draft.n_max = config["n_max"]
        if config["p_min"] is not None:
            params.speculative.draft.p_min = config["p_min"]
        settings.apply(xllamacpp, params, [(name, "f16") for name in settings.DRAFT_CACHE])
    settings.apply(xllamacpp, params, config["settings"])
    return params
