"""Traits: properties that some components have and other components need, forbid or discourage.

A trait is any string. fedexp's components use the traits below; components that you write may use
further traits.
"""

from enum import StrEnum


class Need(StrEnum):
    """A property of data, method or run. Its text completes an error: "... needs <text>"."""

    GLOBAL_MODEL = "a global model"
    CLASS_LABELS = "one class for each sample"
    TEST_CLASSES = "a test split of the classes that clients train on"
    ALL_CLIENTS = "the samples of all clients at once"
    IMAGES = "images"
    SIMULATION = "a simulation, whose clients are all in reach"


# Traits of parts.
ACTS_ON_HEAD = "acts on the parameters of the head alone"
ACTS_ON_SHARED = "acts on shared parameters alone"
ADDS_DRIFT = "adds the mean drift of the clients to the global model"
CHOOSES_START = "lets each client choose the weights that it starts from"
CLASS_PROTOTYPES = "sends class prototypes"
CHANGES_HEAD_INPUT = "changes the features before the head"
COMPARES_WITH_MODEL = "compares with outputs of the client's model outside of the training steps"
DERIVES_CLASSIFIER = "computes its classifier from class means that clients send"
DIVIDES_STEPS = "divides a client's change of the weights by the length of its steps"
DRAWS_BY_SIZE = "draws clients with odds proportional to their samples"
DRAWS_REPEATEDLY = "can draw a client several times a round"
EXPECTS_CURRENT = "may need updates that started from the current global model"
FIXED_CLASSIFIER = "trains the head's classifier in tuning only"
FIXED_HEAD = "has a head without anything to train"
HEAD_LEAVES_OUT_CLASSES = "has a head that gives the classes that a client lacks the logit -inf"
HIDES_COHORTS = "needs cohorts that clients cannot foresee"
INHERITED_MODEL = "keeps a mean of each client's past models"
KEEPS_PROXIMAL_POINTS = "keeps a proximal point of the shared model as each client's own model"
LEAVES_OUT_CLASSES = "gives the classes that a client lacks the logit -inf"
LEFT_OUT_HEAD = "has a head whose parameters are all fixed"
LINEAR_HEAD = "has a head that is one linear layer"
MIXED_MODEL = "takes the gradients of a mixture of two models"
MIXES_OWN_MODEL = "mixes an own model of each client with the shared one"
MIXTURE = "is a mixture of several models"
MUTUAL = "trains an own model of each client by the loss"
NOT_THE_MEAN = "puts the global model elsewhere than at the cohort's mean"
MOVES_START = "may move the received weights before training"
OTHER_GRADIENT = "takes steps along another gradient than the batch's at the current weights"
OTHER_START = "may start clients from other weights than the global ones"
OTHER_WEIGHTS = "weighs clients by more than their samples"
OFFSET_START = "starts all clients from the same weights, which are not the global ones"
OVERLAPPING_SAMPLES = "has samples that share content with other samples"
OWN_LABELLING = "gives each client a labelling of its own"
OWN_MODEL = "trains an own model of each client in the steps of the shared one"
PRIVATE_BACKBONE = "shares no weight of the backbone"
PRIVATE_STATISTICS = "keeps BatchNorm's running statistics at the clients"
PROXIMAL_POINTS = "takes local steps to the proximal points of the objective"
READS_ROUNDS = "depends on the number of rounds"
REPLACES_MODEL = "sends clients models that are not the aggregator's result"
RUNNING_STATISTICS = "normalises features with running statistics in the head"
SECOND_DERIVATIVES = "takes second derivatives of the model"
SECOND_MODEL = "has an own model of each client that the loss trains"
SENDS_KEPT = "may send weights that a client has kept, not the received ones plus a new step"
SENDS_OTHER = "sends other weights than the trained ones"
TAKES_MORE = "may take more from clients than their merged weights"
TAKES_STALE = "takes updates that started from earlier global models"
TUNED_CLASSIFIER = "has a classifier that is trained in tuning only"
UNIFORM_COHORTS = "draws cohorts uniformly, whatever is known of the clients"
UNTRAINED_CLASSIFIER = "scores the global model with a classifier that no client trains"

OTHER_STARTS = (MOVES_START, OTHER_START)
"""Both ways in which clients may begin to train with other weights than the global ones."""

# Traits of models and optimizers.
BATCH_NORM = "is a BatchNorm layer with running statistics"
DIFFERENT_NETWORKS = "has different networks for different clients"
DROPOUT = "is a dropout layer, which draws other random numbers in a stack"
ELEMENTWISE = "updates each element by itself"
LOCAL_MOMENTUM = "is SGD with momentum"
OTHER_STEPS = "takes steps that are no sums of gradients"
RECURRENT = "is a recurrent layer of PyTorch"
STOCHASTIC_DEPTH = "leaves out layers at random"

# Traits of settings.
ASYNCHRONOUS = "lets updates arrive in later rounds than the one in which their client starts"
GIVEN_WEIGHTS = "takes the backbone's weights from a file"
KEEPS_MOMENTUM = "keeps the local optimizer's momentum over rounds"
SAVES_ROUNDS = "saves checkpoints"
MIXES_LATE = "counts the steps of updates that come late from the current model"
CHOOSES_BY_DEVICE = "lets the clients' devices decide whose updates count"
SHORTENS_STEPS = "shortens the steps of updates that come late"
SIMULATED_TIME = "simulates the clients' devices"
SEVERAL_PROCESSES = "trains in several processes"
