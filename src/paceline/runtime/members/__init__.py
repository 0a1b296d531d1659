"""Who takes part: peers that prove they hold the secret, one of them leading, views of the group they form."""
