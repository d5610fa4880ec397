"""Pages that leave the pools for the host and for disks, and come back: what is kept, and who waits for what.

`places` has the places, and whether using them pays; `keeper` copies pages behind the steps that filled them; `fetcher`
brings them back before a sequence is admitted; `tiers` is what the scheduler sees. Whatever is missing, late, damaged,
or slower to load than to compute, is computed.
"""
