"""Running a pair in llama.cpp and judging it: runs, thresholds, verdicts, references.

Nearly every mistake in a conversion or a pairing leaves the text right and only lowers acceptance, so a pair is
judged by what llama.cpp counts. :func:`dflash_convert.validation.run.validate` does it all and returns a
:class:`dflash_convert.validation.result.ValidationResult`.
"""
