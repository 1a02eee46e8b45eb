from dflash_convert.cli import run

run()
