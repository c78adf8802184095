"""Images and their labels on disk: folders of classes, tables, arrays, annotations of other tools."""
