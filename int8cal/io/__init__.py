"""Files and folders of any kind: what may be read and written, locks that end with their process, whole files."""
