"""Who takes part and what one of them can do: the data of the clients, the model as a vector, clients and stacks."""
