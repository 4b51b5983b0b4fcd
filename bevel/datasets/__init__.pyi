from bevel.datasets.augmentation import AugmentationTable as AugmentationTable
from bevel.datasets.augmentation import augmentation_of as augmentation_of
from bevel.datasets.columns import declared as declared
from bevel.datasets.data_set import DataSet as DataSet
from bevel.datasets.data_set import DataSpec as DataSpec
from bevel.datasets.load import data_set as data_set
from bevel.datasets.options import DataTable as DataTable
