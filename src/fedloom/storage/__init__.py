"""What a run leaves on the disk: each file complete or not there, and a state to go on from after any kill.

* ``files`` replaces a file all or nothing, and says what a failing disk means.
* ``toml`` writes TOML, and names what TOML cannot hold.
* ``tensors`` turns tensors into bytes and back.
* ``tensorfile`` is a safetensors file with a checksum over every byte of it.
* ``checkpoint`` is such a file with all that a run needs to go on, and keeps the newest two of a folder.
* ``records`` lays clients' memories out as rows of bytes.
* ``tables`` holds those rows in RAM, within a limit.
* ``segments`` holds them on the disk, in files that are written once.
* ``store`` is the memories of all clients in both, and opens the newest state of a folder that is whole.
* ``signature`` is the user's, on the settings of his runs.
* ``lock`` lets one process write into a folder, and marks it as fedloom's.
* ``history`` is the row of each round, as JSON lines; ``rows`` reads those that are asked for.
* ``folder`` is the folder of a run: its files, made once, written by the holder of its lock.
* ``seal`` is what a run belongs to: settings, data, model, and a name of its own.
* ``belonging`` says which files of a folder do not fit, to one who only looks.
* ``saved`` reads the model of a run that is there, and changes nothing.
* ``closing`` is what all that has to be closed has in common.
"""
