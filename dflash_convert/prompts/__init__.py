"""The bundled prompt sets, one JSON-lines file each; :mod:`dflash_convert.validation.prompts` reads them."""
